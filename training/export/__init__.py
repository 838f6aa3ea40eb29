"""Fitted chains for other software: sentence-transformers, ONNX, FAISS."""
