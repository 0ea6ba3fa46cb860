"""The exercise of AMD's training material on flash attention in Triton: against standard attention, by itself and in a
module with projections; its sizes, and causal masks as its kernel has."""
