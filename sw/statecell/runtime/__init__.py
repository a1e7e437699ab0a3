"""The glue between Hugging Face transformers and an attention engine (a device, or the integer model)."""
