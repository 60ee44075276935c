// Included before json-schema-to-grammar.cpp: what it prints about a client's schema goes to the caller instead of
// standard error, and grammars.cpp stands before its build_grammar.
#pragma once

#include <cstdio>

int chat_capture(FILE * stream, const char * text, ...);
#define fprintf chat_capture
#define build_grammar llama_build_grammar
