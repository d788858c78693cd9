// Whether inner loops are compiled once more for AVX2 and AVX-512, to be chosen by what the
// processor can do; the name of a processor, such as haswell, would mean that one model alone.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && __GNUC__ >= 12 && !defined(__clang__)
#define UNPACK_LEVELS 1
#else
#define UNPACK_LEVELS 0
#endif
