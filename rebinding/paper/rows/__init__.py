"""The sentences that are judged, one file per section: the paper's, and ours beyond it."""
