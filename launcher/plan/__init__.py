"""Pure arithmetic: profile, model shape, machine and capability in; context split, ledger and command line out."""
