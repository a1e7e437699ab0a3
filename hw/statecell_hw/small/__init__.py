"""The small device: a program on one datapath, for FPGAs that the array does not fit."""
