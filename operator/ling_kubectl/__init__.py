"""`kubectl ling`: what people on call ask of Ling, in words and on one screen. It asks the cluster through kubectl."""
