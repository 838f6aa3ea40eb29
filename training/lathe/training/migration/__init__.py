"""Decision whether another encoder is worth it: stay, search through a bridge, or encode again."""
