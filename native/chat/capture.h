// Included before json-schema-to-grammar.cpp: what it prints about a client's schema goes to the caller instead of standard error.
#pragma once

#include <cstdio>

int chat_capture(FILE * stream, const char * text, ...);
#define fprintf chat_capture
