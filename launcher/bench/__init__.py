"""The proofs: one module a technique. Each returns rows and checks in the contract's JSON form."""
