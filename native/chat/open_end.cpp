// Evaluates llama.cpp's parser expressions (common/peg-parser.cpp) without a syntax tree, and notes which of them look
// past the end of the text. An expression that does not gives the same result whatever text follows. So an answer can
// be streamed at a cost that does not grow with its length: while only one expression has seen the end, and it only
// searches for its delimiter, nothing else has to be evaluated.
#include "open_end.h"

#include "unicode.h"

#include <algorithm>
#include <cctype>
#include <cstring>

namespace {

constexpr auto FAIL = COMMON_PEG_PARSE_RESULT_FAIL, SUCCESS = COMMON_PEG_PARSE_RESULT_SUCCESS,
    MORE = COMMON_PEG_PARSE_RESULT_NEED_MORE_INPUT;

struct outcome {
    common_peg_parse_result_type type;
    size_t end;
};

bool is_escapable(char c) { return c && strchr("\"\\/bfnrt", c); }

struct evaluator {
    const common_peg_arena & arena;
    std::string_view input;
    delimiter_tries & tries;
    open_end & found;

    outcome run(common_peg_parser_id id, size_t start) {
        return std::visit([&](const auto & parser) { return eval(parser, id, start); }, arena.get(id));
    }

    void look(common_peg_parser_id id, size_t start, bool is_clean = true) {
        if (found.n_looks && found.last == id && found.last_start == start) return;
        found.n_looks = found.n_looks ? 2 : 1;
        found.last = id;
        found.last_start = start;
        found.is_clean = is_clean;
    }

    outcome eval(const common_peg_epsilon_parser &, common_peg_parser_id, size_t start) { return { SUCCESS, start }; }

    outcome eval(const common_peg_start_parser &, common_peg_parser_id, size_t start) {
        return { start ? FAIL : SUCCESS, start };
    }

    outcome eval(const common_peg_end_parser &, common_peg_parser_id id, size_t start) {
        if (start < input.size()) return { FAIL, start };
        look(id, start);
        return { SUCCESS, start };
    }

    outcome eval(const common_peg_literal_parser & parser, common_peg_parser_id id, size_t start) {
        size_t at = start;
        for (const char wanted : parser.literal) {
            if (at >= input.size()) {
                look(id, start);
                found.n_begun = std::max(found.n_begun, at - start);
                return { MORE, at };
            }
            if (input[at] != wanted) return { FAIL, start };
            at++;
        }
        return { SUCCESS, at };
    }

    outcome eval(const common_peg_sequence_parser & parser, common_peg_parser_id, size_t start) {
        size_t at = start;
        for (const auto child : parser.children) {
            const outcome one = run(child, at);
            if (one.type != SUCCESS) return one;
            at = one.end;
        }
        return { SUCCESS, at };
    }

    outcome eval(const common_peg_choice_parser & parser, common_peg_parser_id, size_t start) {
        for (const auto child : parser.children) {
            const outcome one = run(child, start);
            if (one.type != FAIL) return one;
        }
        return { FAIL, start };
    }

    outcome eval(const common_peg_repetition_parser & parser, common_peg_parser_id id, size_t start) {
        size_t at = start;
        int n = 0;
        while (parser.max_count == -1 || n < parser.max_count) {
            if (at >= input.size()) {
                look(id, start);
                break;
            }
            const outcome one = run(parser.child, at);
            if (one.type == MORE) return one;
            if (one.type == FAIL || one.end == at) break;
            at = one.end;
            n++;
        }
        if (n >= parser.min_count) return { SUCCESS, at };
        return { at >= input.size() ? MORE : FAIL, at };
    }

    outcome eval(const common_peg_and_parser & parser, common_peg_parser_id, size_t start) {
        return { run(parser.child, start).type, start };
    }

    outcome eval(const common_peg_not_parser & parser, common_peg_parser_id, size_t start) {
        const auto type = run(parser.child, start).type;
        return { type == SUCCESS ? FAIL : type == FAIL ? SUCCESS : MORE, start };
    }

    outcome eval(const common_peg_any_parser &, common_peg_parser_id id, size_t start) {
        const auto one = common_parse_utf8_codepoint(input, start);
        if (one.status == utf8_parse_result::INCOMPLETE) {
            look(id, start, false);
            return { MORE, start };
        }
        if (one.status == utf8_parse_result::INVALID) return { FAIL, start };
        return { SUCCESS, start + one.bytes_consumed };
    }

    outcome eval(const common_peg_space_parser &, common_peg_parser_id id, size_t start) {
        size_t at = start;
        while (at < input.size() && std::isspace(static_cast<unsigned char>(input[at]))) at++;
        if (at >= input.size()) look(id, start);
        return { SUCCESS, at };
    }

    outcome eval(const common_peg_chars_parser & parser, common_peg_parser_id id, size_t start) {
        size_t at = start;
        int n = 0;
        while (parser.max_count == -1 || n < parser.max_count) {
            const auto one = common_parse_utf8_codepoint(input, at);
            if (one.status == utf8_parse_result::INCOMPLETE) {
                look(id, start);
                return { n >= parser.min_count ? SUCCESS : MORE, at };
            }
            if (one.status == utf8_parse_result::INVALID) break;
            bool matches = false;
            for (const auto & range : parser.ranges) matches = matches || range.contains(one.codepoint);
            if (matches == parser.negated) break;
            at += one.bytes_consumed;
            n++;
        }
        return { n >= parser.min_count ? SUCCESS : FAIL, at };
    }

    outcome eval(const common_peg_string_parser & parser, common_peg_parser_id id, size_t start) {
        size_t at = start;
        while (at < input.size()) {
            const char c = input[at];
            if (c == parser.delimiter) return { SUCCESS, at };
            if (c != '\\') {
                const auto one = common_parse_utf8_codepoint(input, at);
                if (one.status == utf8_parse_result::INVALID) return { FAIL, start };
                if (one.status == utf8_parse_result::INCOMPLETE) break;
                at += one.bytes_consumed;
                continue;
            }
            if (at + 1 >= input.size()) break;
            const char escaped = input[at + 1];
            size_t size = 2;
            if (escaped == 'u') {
                while (size < 6 && at + size < input.size()
                    && std::isxdigit(static_cast<unsigned char>(input[at + size]))) size++;
                if (size < 6 && at + size < input.size()) return { FAIL, start };
                if (size < 6) break;
            } else if (escaped != parser.delimiter && (escaped == '"' || !is_escapable(escaped))) {
                return { FAIL, start };
            }
            at += size;
        }
        look(id, start, at >= input.size());
        return { MORE, at };
    }

    outcome eval(const common_peg_until_parser & parser, common_peg_parser_id id, size_t start) {
        const auto & trie = tries.try_emplace(id, parser.delimiters).first->second;
        size_t at = start;
        while (at < input.size()) {
            const auto one = common_parse_utf8_codepoint(input, at);
            if (one.status == utf8_parse_result::INCOMPLETE) {
                look(id, start, false);
                return { MORE, at };
            }
            if (one.status == utf8_parse_result::SUCCESS) {
                const auto match = trie.check_at(input, at);
                if (match == common_trie::PARTIAL_MATCH) look(id, start, false);
                if (match != common_trie::NO_MATCH) return { SUCCESS, at };
            }
            at += one.bytes_consumed;
        }
        look(id, start);
        return { MORE, at };
    }

    outcome eval(const common_peg_ref_parser & parser, common_peg_parser_id, size_t start) {
        return run(arena.get_rule(parser.name), start);
    }

    // schema, rule, tag, atomic, gbnf and ac only wrap a child
    template <typename T> outcome eval(const T & parser, common_peg_parser_id, size_t start) {
        return run(parser.child, start);
    }
};

} // namespace

open_end find_open_end(const common_peg_arena & arena, std::string_view input, delimiter_tries & tries) {
    open_end found;
    const outcome all = evaluator{ arena, input, tries, found }.run(arena.root(), 0);
    found.type = all.type;
    found.end = all.end;
    return found;
}

std::string free_text::take(std::string_view text) {
    held_.append(text);
    return is_string() ? take_string() : take_free();
}

std::string free_text::take_free() {
    size_t at = 0;
    while (at < held_.size()) {
        const auto one = common_parse_utf8_codepoint(held_, at);
        if (one.status != utf8_parse_result::SUCCESS) { // half a character, or an invalid one: the parser decides
            is_open_ = false;
            break;
        }
        const auto match = delimiters_->check_at(held_, at);
        is_open_ = match != common_trie::COMPLETE_MATCH;
        if (match != common_trie::NO_MATCH) break;
        at += one.bytes_consumed;
    }
    std::string taken = held_.substr(0, at);
    held_.erase(0, at);
    return taken;
}

std::string free_text::take_string() {
    size_t at = 0;
    while (at < held_.size() && is_open_) {
        const char c = held_[at];
        size_t size = 1;
        if (c == '\\') {
            if (at + 1 >= held_.size()) break;
            size = held_[at + 1] == 'u' ? 6 : 2;
            if (at + size > held_.size()) break;
            bool is_escape = size == 6 || is_escapable(held_[at + 1]);
            for (size_t i = 2; i < size; i++) is_escape = is_escape
                && std::isxdigit(static_cast<unsigned char>(held_[at + i]));
            is_open_ = is_escape;
        } else if (c & 0x80) {
            const auto one = common_parse_utf8_codepoint(held_, at);
            is_open_ = one.status == utf8_parse_result::SUCCESS;
            size = one.bytes_consumed;
        } else {
            is_open_ = c != '"';
        }
        if (is_open_) at += size;
    }
    std::string taken = held_.substr(0, at);
    held_.erase(0, at);
    return taken;
}
