// Finds the part of a template's parser in which an answer stops, so that text after it need not be parsed together
// with everything before it.
#pragma once

#include "peg-parser.h"
#include "trie.h"

#include <map>
#include <string>
#include <string_view>

// The findings of a parse of an unfinished answer about the end of the text.
struct open_end {
    common_peg_parse_result_type type = COMMON_PEG_PARSE_RESULT_FAIL;
    size_t end = 0;
    // parsers that asked for text after the end; 2: two or more
    int n_looks = 0;
    common_peg_parser_id last = COMMON_PEG_INVALID_PARSER_ID; // the last of them
    size_t last_start = 0;                                   // where it began
    size_t n_begun = 0;                                      // bytes at the end that are the beginning of a delimiter
    // `last` consumed the text to its end, and holds no half delimiter or escape
    bool is_clean = true;

    // No text that follows can change the failure.
    bool is_dead() const { return type == COMMON_PEG_PARSE_RESULT_FAIL && n_looks == 0; }

    // Only `last` saw the end. As long as text that follows leaves the end inside `last`, it changes nothing else of
    // the parse.
    bool is_one() const { return type == COMMON_PEG_PARSE_RESULT_NEED_MORE_INPUT && n_looks == 1 && is_clean; }
};

using delimiter_tries = std::map<common_peg_parser_id, common_trie>; // of the until parsers; kept between calls

open_end find_open_end(const common_peg_arena & arena, std::string_view input, delimiter_tries & tries);

// Scans the text after an answer that stops in free text (up to a delimiter) or in a JSON string, piece by piece.
class free_text {
  public:
    free_text() = default;
    // null: a JSON string
    explicit free_text(const common_trie * delimiters) : delimiters_(delimiters), is_open_(true) {}

    bool is_open() const { return is_open_; }
    bool is_string() const { return !delimiters_; }

    // Returns the part of `held_ + text` that certainly belongs to the free text. If the free text ends there,
    // is_open() becomes false, and the rest is not looked at.
    std::string take(std::string_view text);

  private:
    std::string take_free();
    std::string take_string();

    const common_trie * delimiters_ = nullptr;
    bool is_open_ = false;
    std::string held_; // text that may be the beginning of a delimiter or an escape
};
