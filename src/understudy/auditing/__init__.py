"""What the synthetic text gives away: memorisation, membership, personal data."""
