"""Runs Python programs that a model wrote in a sandbox: bubblewrap, a seccomp filter and limits."""
