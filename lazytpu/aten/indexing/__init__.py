"""Reading and writing at computed indices, embedding tables among them."""
