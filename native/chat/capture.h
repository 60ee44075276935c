// Included before json-schema-to-grammar.cpp. Its messages about a client's schema go to the caller instead of standard
// error, and the build_grammar that others call is the one of grammars.cpp.
#pragma once

#include <cstdio>

int chat_capture(FILE * stream, const char * text, ...);
#define fprintf chat_capture
#define build_grammar llama_build_grammar
