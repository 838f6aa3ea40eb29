"""Export of fitted chains to other software: sentence-transformers, ONNX, FAISS."""
