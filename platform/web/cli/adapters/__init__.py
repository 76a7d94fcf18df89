"""Words about adapters: add, push, aliases, profiles, certify."""
