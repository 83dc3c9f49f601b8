"""What a key, a request and a busy server are limited to."""
