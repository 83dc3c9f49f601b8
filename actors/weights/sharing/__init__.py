"""Device memory shared by two processes of one machine, and the messages by which they coordinate."""
