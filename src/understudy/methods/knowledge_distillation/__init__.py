"""Knowledge distillation: a private client, a professional server, and only adapters between them."""
