"""What is learned of live traffic, beside the requests: vectors pass by, texts never do."""
