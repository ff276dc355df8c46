"""What may happen to any command - a signal, a closed pipe, a full disk, a crash - so that no flow
has to speak of it."""
