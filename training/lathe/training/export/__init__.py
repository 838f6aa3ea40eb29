"""Export of fitted chains of transforms to other software: sentence-transformers, ONNX, FAISS, NumPy.

Every export is written to a temporary folder, compared with the chain on probe texts or vectors, and renamed only if
the outputs agree.
"""
