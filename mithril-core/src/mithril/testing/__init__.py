"""The conformance kit: shows whether a backend makes what the NumPy engine makes on one device."""
