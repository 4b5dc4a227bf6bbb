"""Operations on fields whose latitude rows are split: exact on any number of shards."""
