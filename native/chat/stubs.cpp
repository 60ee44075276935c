// Stands in for the functions of libllama, ggml and common.cpp that llama.cpp's chat code calls, so that none of those
// libraries has to be linked. These functions must never meet the real ones: the shared object hides every symbol
// except uma_chat_*.
#include "common.h"
#include "log.h"
#include "model.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <stdexcept>

static constexpr size_t MAX_LOG_BYTES = 8192;
static constexpr llama_token BOS = 0, EOS = 1;

static std::string format(const char * text, va_list arguments) {
    va_list again;
    va_copy(again, arguments);
    const int size = vsnprintf(nullptr, 0, text, arguments);
    std::string result(size > 0 ? size : 0, '\0');
    vsnprintf(result.data(), result.size() + 1, text, again);
    va_end(again);
    return result;
}

// A failed GGML_ASSERT becomes an exception: one request must not end the process that serves everybody.
extern "C" void ggml_abort(const char * file, int line, const char * text, ...) {
    va_list arguments;
    va_start(arguments, text);
    const std::string reason = format(text, arguments);
    va_end(arguments);
    const char * base = strrchr(file, '/');
    throw std::logic_error(std::string(base ? base + 1 : file) + ":" + std::to_string(line) + ": " + reason);
}

// A "vocabulary" is the model itself, and its only tokens are BOS and EOS.
static const llama_model * model_of(const llama_vocab * vocab) { return reinterpret_cast<const llama_model *>(vocab); }

extern "C" {
const char * llama_model_chat_template(const llama_model * model, const char * name) {
    const std::string & text = name ? model->tool_use_template : model->chat_template;
    return text.empty() ? nullptr : text.c_str();
}
const llama_vocab * llama_model_get_vocab(const llama_model * model) {
    return reinterpret_cast<const llama_vocab *>(model);
}
llama_token llama_vocab_bos(const llama_vocab * vocab) { return model_of(vocab)->bos.empty() ? LLAMA_TOKEN_NULL : BOS; }
llama_token llama_vocab_eos(const llama_vocab * vocab) { return model_of(vocab)->eos.empty() ? LLAMA_TOKEN_NULL : EOS; }
bool llama_vocab_get_add_bos(const llama_vocab * vocab) { return model_of(vocab)->add_bos; }
bool llama_vocab_get_add_eos(const llama_vocab * vocab) { return model_of(vocab)->add_eos; }
// only Jinja templates are used
int32_t llama_chat_apply_template(const char *, const llama_chat_message *, size_t, bool, char *, int32_t) {
    return -1;
}
}

std::string common_token_to_piece(const llama_vocab * vocab, llama_token token, bool) {
    return token == BOS ? model_of(vocab)->bos : model_of(vocab)->eos;
}
std::vector<llama_token> common_tokenize(const llama_vocab *, const std::string &, bool, bool) {
    throw std::logic_error("the chat library has no tokenizer");
}

thread_local std::string chat_log;
struct common_log {};
int common_log_get_verbosity_thold(void) { return LOG_LEVEL_WARN; }
common_log * common_log_main() { return nullptr; }
void common_log_add(common_log *, ggml_log_level, const char * text, ...) {
    if (chat_log.size() > MAX_LOG_BYTES) return;
    va_list arguments;
    va_start(arguments, text);
    chat_log += format(text, arguments);
    va_end(arguments);
}

// Functions of common.cpp, with the same semantics.
void string_replace_all(std::string & text, const std::string & search, const std::string & replacement) {
    if (search.empty()) return;
    std::string result;
    size_t from = 0, found;
    while ((found = text.find(search, from)) != std::string::npos) {
        result.append(text, from, found - from).append(replacement);
        from = found + search.size();
    }
    text = result.append(text, from, std::string::npos);
}

std::string string_join(const std::vector<std::string> & values, const std::string & separator) {
    std::string result;
    for (size_t i = 0; i < values.size(); i++) result.append(i ? separator : "").append(values[i]);
    return result;
}

std::vector<std::string> string_split(const std::string & text, const std::string & delimiter) {
    std::vector<std::string> parts;
    size_t from = 0, found;
    while ((found = text.find(delimiter, from)) != std::string::npos) {
        parts.push_back(text.substr(from, found - from));
        from = found + delimiter.size();
    }
    parts.push_back(text.substr(from));
    return parts;
}

std::string string_repeat(const std::string & text, size_t n) {
    std::string result;
    result.reserve(text.size() * n);
    while (n--) result += text;
    return result;
}

int chat_capture(FILE *, const char * text, ...) {
    if (chat_log.size() > MAX_LOG_BYTES) return 0;
    va_list arguments;
    va_start(arguments, text);
    chat_log += format(text, arguments);
    va_end(arguments);
    return 0;
}
