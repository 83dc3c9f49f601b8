"""Turns team transcripts into chains to imitate: conversion, filters, rewriting, reports; `sources` imports others."""

from coa.distill.convert import to_chain
from coa.distill.filters import FilterConfig, FilterReport, Kept, filter_runs

__all__ = ["FilterConfig", "FilterReport", "Kept", "filter_runs", "to_chain"]
