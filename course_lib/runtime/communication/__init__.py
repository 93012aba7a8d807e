"""What simulated and real ranks share: calls, their meaning and cost, events, traffic, diagnosis."""
