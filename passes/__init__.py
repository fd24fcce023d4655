"""The passes over the joint forward and backward graph, in running order."""
