"""Offloading to several tiers: host memory first, disks and storage behind it; the two sides of the connector."""
