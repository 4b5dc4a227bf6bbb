"""Operations on fields with sharded latitude rows, exact on any number of shards."""
