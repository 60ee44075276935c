// Decides whether a request's grammar is written. llama.cpp writes the grammar of every schema that comes with a
// request, in time that grows with the cube of the number of an object's optional properties: 10 s for 1,000.
// Constraints come from the parser and the schema itself (uma_gateway/chat/constraint.py), so only a few templates need
// the grammar's text.
#include "grammars.h"

#include "json-schema-to-grammar.h"

using grammar_writer = std::function<void(const common_grammar_builder &)>;

// The function of json-schema-to-grammar.cpp; capture.h gives it this name.
std::string llama_build_grammar(const grammar_writer & write, const common_grammar_options & options);

thread_local bool writes_grammars = true;

std::string build_grammar(const grammar_writer & write, const common_grammar_options & options) {
    // any text will do: chat.cpp only asks whether there is one
    return writes_grammars ? llama_build_grammar(write, options) : "root ::= [^]*";
}
