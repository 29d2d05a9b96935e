"""All routers on one trace: the same requests at the same times, and how much longer each waits than under the best."""
