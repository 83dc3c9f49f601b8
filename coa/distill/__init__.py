"""Makes chains that are worth imitating of team transcripts: conversion, filters, rewriting, reports; sources below."""

from coa.distill.convert import to_chain
from coa.distill.filters import FilterConfig, FilterReport, Kept, filter_runs

__all__ = ["FilterConfig", "FilterReport", "Kept", "filter_runs", "to_chain"]
