"""Turns team transcripts into chains to imitate: conversion, filters, rewriting, reports; `sources` imports others."""

from coa.distill.convert import to_chain
from coa.distill.drop_report import FilterReport
from coa.distill.filters import Kept, filter_runs
from coa.distill.stages import FilterConfig

__all__ = ["FilterConfig", "FilterReport", "Kept", "filter_runs", "to_chain"]
