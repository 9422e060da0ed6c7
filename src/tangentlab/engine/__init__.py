"""The engine: one pass over a model gives per-layer inputs and output-gradients; anything else takes the exact route."""
