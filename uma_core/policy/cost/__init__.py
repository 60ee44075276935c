"""What calls take: predict (`model`), correct by what they took (`learn`), measure at start (`calibrate`)."""
