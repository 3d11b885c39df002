"""What people read: terminal tables and what stands under them."""
