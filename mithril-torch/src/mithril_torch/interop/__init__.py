"""Tensors, DTensors and modules of PyTorch in Mithril, and the reverse."""
