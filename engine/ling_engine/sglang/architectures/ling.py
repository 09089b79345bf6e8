"""Ling-3.0 and its two drafts, by SGLang's own classes. Imports SGLang."""

from __future__ import annotations

from sglang.srt.models import bailing_moe_nextn, bailing_moe_v3, dspark

EntryClass = [*bailing_moe_v3.EntryClass, *bailing_moe_nextn.EntryClass, *dspark.EntryClass]
