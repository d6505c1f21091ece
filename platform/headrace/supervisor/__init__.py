"""`headrace up`: starts and watches every process of a single machine, and leaves nothing behind when it stops."""
