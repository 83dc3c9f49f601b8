"""Folders of pretrained models in Hugging Face layout, and what is wrong with them, found before they are loaded."""
