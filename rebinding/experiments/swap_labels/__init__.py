"""Keys of group B at the labels of the swap sentence, exchanged along the directions of slots."""
