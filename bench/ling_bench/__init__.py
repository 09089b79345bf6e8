"""`ling-bench`: how fast an OpenAI-compatible endpoint answers one request at a time, so that it compares."""
