"""The gateway: programs ask the policy through it, and what the policy samples for them is recorded, token by token."""
