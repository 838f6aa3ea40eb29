"""Indexes: vectors stored under ids and searched by similarity, in the state folder or in Milvus."""
