// The C interface of the chat library: llama.cpp's templates and parsers of answers, with JSON text in and out. Every
// function returns {"ok": ...} or {"error": {"kind", "message", "log"}}. The text belongs to the caller, which frees it
// with uma_chat_free. No exception leaves the library. Several threads may use a template handle at once, but only one
// may use a parser handle.
#include "chat-peg-parser.h"
#include "chat.h"
#include "grammars.h"
#include "json-schema.h"
#include "json.h"
#include "model.h"
#include "open_end.h"
#include "peg-parser.h"
#include "time_limit.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <new>

#include <pthread.h>

using json = common_json;

#define API extern "C" __attribute__((visibility("default")))

static constexpr int INTERFACE = 4; // raised with every change that uma_gateway/chat/library.py has to follow

// Templates, schema readers and answer parsers recurse with the nesting of their input, and a stack overflow would end
// the process. With the bundled templates one level of an answer takes up to 4.1 KB of stack, and one level of a
// request 4.3 KB. Other templates may need more for a request, so uma_gateway/chat/check.py tries each template on 8
// MB.
static constexpr int MAX_JSON_DEPTH = 256, MAX_ANSWER_DEPTH = 1000;
static constexpr size_t JSON_LEVEL_BYTES = 32 << 10, ANSWER_LEVEL_BYTES = 6 << 10;
// llama.cpp's JSON type searches all names of an object whenever one is added: 4,000 names take 0.2 s to read and
// write, 16,000 take 5 s. Tool results may be whole files, and few templates read them as JSON.
static constexpr int MAX_NAMES = 4096, MAX_RESULT_NAMES = 8 * MAX_NAMES;

// A template computes for milliseconds, or for a second with the megabytes of a long conversation.
static constexpr double MAX_SECONDS = 5, SECONDS_PER_BYTE = 2e-6;

struct uma_chat_templates {
    llama_model model;
    int max_depth;      // of a request's JSON
    double max_seconds; // of processor time for a request
    common_chat_templates_ptr templates;
};

// A parse reads the whole answer, at 5 to 10 ns per byte. All parses together may read PARSED_AT_LEAST bytes, plus
// PARSED_PER_BYTE bytes for each byte of the answer. So tokens inside a structure (numbers, argument names) are parsed
// at once in the first 6 KB of such tokens, and then whenever the answer has grown by 0.4 %.
static constexpr size_t PARSED_PER_BYTE = 512, PARSED_AT_LEAST = 8 << 20;

static constexpr size_t N_KEPT_FORMS = 16, MAX_KEPT_BYTES = 512 << 10; // of one form, as JSON

// How to read an answer. Answers share it: it never changes.
struct answer_form {
    common_chat_format format;
    std::string generation_prompt; // the parser's input begins with it
    common_peg_arena arena;
    common_chat_msg begun; // the prefilled beginning of a continued message, which is not part of the answer
};

struct uma_chat_parser {
    std::shared_ptr<const answer_form> form;
    std::string text;              // of the answer so far
    common_chat_msg message;       // the sum of the differences given out so far
    std::vector<std::string> ids;  // of its tool calls
    int depth = 0, deepest = 0;    // nesting of brackets in the text
    size_t n_parsed = 0;           // bytes read by all parses together
    delimiter_tries tries;
    // While the answer continues in free text, new text is only scanned for the end of the free text, and is added
    // where the parser would put it:
    free_text open;
    std::string common_chat_msg::* open_text = nullptr; // content or reasoning
    bool is_open_argument = false;                      // the last call's arguments
    bool is_open_escaped = false;                       // as the inside of a JSON string
    std::string untold;                                 // white space to give out when more follows
};

// A failure with its kind. Every other exception is the library's fault.
struct problem : std::runtime_error {
    const char * kind;
    problem(const char * kind, const std::string & message) : std::runtime_error(message), kind(kind) {}
};

// --- answers

static char * copy_out(const std::string & text) {
    char * copy = static_cast<char *>(malloc(text.size() + 1));
    if (copy) memcpy(copy, text.c_str(), text.size() + 1);
    return copy;
}

static char * failure(const char * kind, const std::string & message) noexcept {
    try {
        json error = json::object();
        error["kind"] = kind;
        error["message"] = message;
        error["log"] = chat_log;
        json answer = json::object();
        answer["error"] = error;
        return copy_out(answer.dump_safe());
    } catch (...) {
        return nullptr;
    }
}

// Runs a part of a call, and reports its failures as failures of one kind.
template <typename F> static auto about(const char * kind, F && work) {
    try {
        return work();
    } catch (const problem &) {
        throw;
    } catch (const std::bad_alloc &) {
        throw;
    } catch (const std::exception & error) {
        throw problem(kind, error.what());
    }
}

// Ends templates after so many seconds. llama.cpp passes over some failures of templates, but not over this one.
template <typename F> static json in_time(double seconds, F && work) {
    const time_limit limit(seconds);
    const auto check = [&] {
        if (limit.is_exceeded())
            throw problem("time", "the chat template computes for too long: send less, or serve another model");
    };
    try {
        json result = work();
        check();
        return result;
    } catch (const std::exception &) {
        check();
        throw;
    }
}

template <typename F> static char * guarded(F && work) noexcept {
    try {
        chat_log.clear();
        json answer = json::object();
        answer["ok"] = work();
        return copy_out(answer.dump_safe());
    } catch (const problem & error) {
        return failure(error.kind, error.what());
    } catch (const common_json_error & error) {
        return failure("request", error.what());
    } catch (const std::bad_alloc &) {
        return failure("memory", "out of memory");
    } catch (const std::exception & error) {
        return failure("internal", error.what());
    } catch (...) {
        return failure("internal", "an unknown exception");
    }
}

// --- depth

// Returns how much of this thread's stack is left. Threads have 8 MB on Linux and 512 KB on macOS.
static size_t stack_left() {
    static thread_local uintptr_t lowest = 0;
    if (!lowest) {
#ifdef __APPLE__
        lowest = reinterpret_cast<uintptr_t>(pthread_get_stackaddr_np(pthread_self()))
            - pthread_get_stacksize_np(pthread_self());
#else
        pthread_attr_t attributes;
        void * address = nullptr;
        size_t size = 0;
        if (pthread_getattr_np(pthread_self(), &attributes)) return 0;
        pthread_attr_getstack(&attributes, &address, &size);
        pthread_attr_destroy(&attributes);
        lowest = reinterpret_cast<uintptr_t>(address);
#endif
    }
    char here;
    const auto now = reinterpret_cast<uintptr_t>(&here);
    return now > lowest ? now - lowest : 0;
}

static int depth_limit(int most, size_t level_bytes) {
    return static_cast<int>(std::min<size_t>(most, stack_left() / level_bytes));
}

struct json_shape {
    int deepest = 0; // levels
    int widest = 0;  // names of one object
};

static json_shape shape_of(const char * text) {
    json_shape shape;
    std::array<int, MAX_JSON_DEPTH + 1> n_names{}; // of the object that is open at each depth; deeper texts are refused
    int depth = 0;
    bool in_string = false;
    const auto is_counted = [&] { return depth > 0 && depth <= MAX_JSON_DEPTH; };
    for (; *text; text++) {
        if (in_string) {
            if (*text == '\\' && text[1]) text++;
            else if (*text == '"') in_string = false;
        } else if (*text == '"') {
            in_string = true;
        } else if (*text == '[' || *text == '{') {
            shape.deepest = std::max(shape.deepest, ++depth);
            if (is_counted()) n_names[depth] = 0;
        } else if (*text == ']' || *text == '}') {
            depth--;
        } else if (*text == ':' && is_counted()) {
            shape.widest = std::max(shape.widest, ++n_names[depth]);
        }
    }
    return shape;
}

static void refuse_costly(const char * text, const char * what, int most = MAX_JSON_DEPTH, int names = MAX_NAMES) {
    const int limit = depth_limit(most, JSON_LEVEL_BYTES);
    const json_shape shape = shape_of(text);
    if (shape.deepest > limit)
        throw problem("depth", std::string(what) + " is nested deeper than " + std::to_string(limit) + " levels");
    if (shape.widest > names)
        throw problem("request", std::string(what) + ": an object has more than " + std::to_string(names) + " names");
}

// Brackets of every kind count, also in plain text: an answer that deep is not worth parsing.
static void count_depth(uma_chat_parser & handle, const char * text, size_t size) {
    for (const char * end = text + size; text < end; text++) {
        if (*text == '[' || *text == '{') handle.deepest = std::max(handle.deepest, ++handle.depth);
        else if ((*text == ']' || *text == '}') && handle.depth > 0) handle.depth--;
    }
    if (handle.deepest > depth_limit(MAX_ANSWER_DEPTH, ANSWER_LEVEL_BYTES))
        throw problem("depth", "the answer is nested too deep");
}

static json parse_request(const char * text, int max_depth = MAX_JSON_DEPTH) {
    refuse_costly(text, "the request", max_depth);
    return json::parse(text);
}

// Applies the same limits to texts that llama.cpp parses as JSON in turn: the arguments of tool calls, and with some
// templates the results of tools.
static void refuse_costly_texts(const std::vector<common_chat_msg> & messages, int max_depth) {
    for (const auto & message : messages) {
        for (const auto & call : message.tool_calls)
            refuse_costly(call.arguments.c_str(), "a tool call's arguments", max_depth);
        const size_t first = message.content.find_first_not_of(" \t\r\n");
        if (message.role == "tool" && first != std::string::npos && strchr("[{", message.content[first]))
            refuse_costly(message.content.c_str() + first, "a tool's result", max_depth, MAX_RESULT_NAMES);
    }
}

// --- templates

static json template_facts(const uma_chat_templates & handle) {
    json capabilities = json::object();
    for (const auto & [name, value] : common_chat_templates_get_caps(handle.templates.get()))
        capabilities[name] = value;
    json facts = json::object();
    facts["capabilities"] = capabilities;
    facts["log"] = chat_log;
    return facts;
}

static common_chat_templates_inputs read_inputs(const uma_chat_templates & handle, const json & request) {
    common_chat_templates_inputs inputs;
    inputs.messages = common_chat_msgs_parse_oaicompat(request.at("messages"));
    refuse_costly_texts(inputs.messages, handle.max_depth);
    inputs.add_bos = handle.model.add_bos;
    inputs.add_eos = handle.model.add_eos;
    if (request.contains("tools")) inputs.tools = common_chat_tools_parse_oaicompat(request.at("tools"));
    inputs.tool_choice = common_chat_tool_choice_parse_oaicompat(request.value("tool_choice", "auto"));
    inputs.parallel_tool_calls = request.value("parallel_tool_calls", false);
    if (request.contains("json_schema")) inputs.json_schema = request.at("json_schema").dump();
    inputs.add_generation_prompt = request.value("add_generation_prompt", true);
    if (request.contains("continue_final_message"))
        inputs.continue_final_message = common_chat_continuation_parse(request.at("continue_final_message"));
    inputs.reasoning_format = common_reasoning_format_from_name(request.value("reasoning_format", "auto"));
    inputs.enable_thinking = request.value("enable_thinking", true);
    if (request.contains("chat_template_kwargs"))
        for (const auto & [name, value] : request.at("chat_template_kwargs").items())
            inputs.chat_template_kwargs[name] = value.dump();
    return inputs;
}

// Reads all schemas before a template is rendered with them, to tell an unreadable schema from a failing template.
static void check_schemas(const common_chat_templates_inputs & inputs) {
    if (!inputs.json_schema.empty()) common_chat_schema_from_json(json::parse(inputs.json_schema));
    if (inputs.tool_choice == COMMON_CHAT_TOOL_CHOICE_NONE) return;
    for (const auto & tool : inputs.tools) common_chat_schema_from_json(json::parse(tool.parameters));
}

static const char * trigger_type(common_grammar_trigger_type type) {
    switch (type) {
        case COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN: return "token";
        case COMMON_GRAMMAR_TRIGGER_TYPE_WORD: return "word";
        case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN: return "pattern";
        case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN_FULL: return "pattern_full";
    }
    return "unknown";
}

static json applied_json(const common_chat_params & params) {
    json triggers = json::array();
    for (const auto & trigger : params.grammar_triggers) {
        json entry = json::object();
        entry["type"] = trigger_type(trigger.type);
        entry["value"] = trigger.value;
        triggers.push_back(entry);
    }
    json applied = json::object();
    applied["prompt"] = params.prompt;
    applied["format"] = static_cast<int>(params.format);
    applied["has_grammar"] = !params.grammar.empty();
    applied["grammar"] = writes_grammars ? params.grammar : std::string();
    applied["grammar_lazy"] = params.grammar_lazy;
    applied["grammar_triggers"] = triggers;
    applied["preserved_tokens"] = params.preserved_tokens;
    applied["additional_stops"] = params.additional_stops;
    applied["generation_prompt"] = params.generation_prompt;
    applied["supports_thinking"] = params.supports_thinking;
    applied["thinking_start_tag"] = params.thinking_start_tag;
    applied["thinking_end_tags"] = params.thinking_end_tags;
    applied["parser"] = params.parser;
    applied["log"] = chat_log;
    return applied;
}

// --- answers of the model

static const char * const END_MARK = "\xEE\x80\x80"; // a private character, which is not part of any delimiter

static bool take_mark(std::string & text) {
    const size_t size = strlen(END_MARK);
    if (text.size() < size || text.compare(text.size() - size, size, END_MARK)) return false;
    text.resize(text.size() - size);
    return true;
}

struct parsed {
    common_chat_msg message;
    bool is_whole; // the text does not end in the middle of something
};

// Like common_chat_parse, but it also says whether the answer is whole, and it fails if the text so far does not have
// the template's form.
static parsed parse(const answer_form & form, const std::string & text) {
    common_peg_parse_context context(form.generation_prompt + text, COMMON_PEG_PARSE_FLAG_LENIENT);
    const auto result = form.arena.parse(context);
    if (result.fail()) throw problem("answer", "the answer does not have the template's form");
    parsed found{ {}, !result.need_more_input() };
    found.message.role = "assistant";
    std::unique_ptr<common_chat_peg_mapper> mapper;
    if (form.format == COMMON_CHAT_FORMAT_PEG_GEMMA4)
        mapper = std::make_unique<common_chat_peg_gemma4_mapper>(found.message);
    else if (form.format == COMMON_CHAT_FORMAT_PEG_MINIMAX_M3)
        mapper = std::make_unique<common_chat_peg_minimax_m3_mapper>(found.message);
    else mapper = std::make_unique<common_chat_peg_mapper>(found.message);
    mapper->from_ast(context.ast, result);
    return found;
}

// llama.cpp holds back text that may be the beginning of a delimiter, so an answer that ends with "<" would lose it.
// Followed by a mark, the "<" can only be text. But the mark must not turn a call that was cut off into text.
static parsed parse_whole(uma_chat_parser & handle) {
    parsed plain = parse(*handle.form, handle.text);
    handle.n_parsed += handle.text.size();
    try {
        auto found = parse(*handle.form, handle.text + END_MARK);
        const bool has_mark = take_mark(found.message.content) || take_mark(found.message.reasoning_content);
        if (has_mark && found.message.tool_calls.size() == plain.message.tool_calls.size())
            return { std::move(found.message), true };
    } catch (const problem &) {
        // the answer ends with a delimiter, or in the middle of a call
    }
    return plain;
}

// A parse may find less text than was already given out. The message keeps what was given out.
static void keep_told(std::string & found, const std::string & told) {
    if (found.size() < told.size() && !told.compare(0, found.size(), found)) found = told;
}

static json differences(uma_chat_parser & handle, common_chat_msg message) {
    json list = json::array();
    if (message.empty()) return list;
    message.set_tool_call_ids(handle.ids, [] { return std::string(); });
    for (const auto & change : common_chat_msg_diff::compute_diffs(handle.message, message)) {
        json entry = json::object();
        if (!change.reasoning_content_delta.empty()) entry["reasoning"] = change.reasoning_content_delta;
        if (!change.content_delta.empty()) entry["content"] = change.content_delta;
        if (change.tool_call_index != std::string::npos) {
            entry["index"] = change.tool_call_index;
            entry["name"] = change.tool_call_delta.name;
            entry["id"] = change.tool_call_delta.id;
            entry["arguments"] = change.tool_call_delta.arguments;
        }
        if (!entry.empty()) list.push_back(entry);
    }
    keep_told(message.content, handle.message.content);
    keep_told(message.reasoning_content, handle.message.reasoning_content);
    for (size_t i = 0; i < handle.message.tool_calls.size() && i < message.tool_calls.size(); i++)
        keep_told(message.tool_calls[i].arguments, handle.message.tool_calls[i].arguments);
    handle.message = std::move(message);
    return list;
}

// --- free text

static std::string escaped(const std::string & text) {
    const std::string quoted = json(text).dump();
    return quoted.substr(1, quoted.size() - 2);
}

static bool is_space(const std::string & text) { return text.find_first_not_of(" \t\r\n\v\f") == std::string::npos; }

// Returns whether `longer` is `shorter` followed by `text`. White space that `shorter` leaves out goes to *untold.
static bool is_continued(const std::string & shorter, const std::string & longer, const std::string & text,
    std::string * untold) {
    if (longer.size() < shorter.size() + text.size() || longer.compare(0, shorter.size(), shorter)) return false;
    if (longer.compare(longer.size() - text.size(), text.size(), text)) return false;
    *untold = longer.substr(shorter.size(), longer.size() - text.size() - shorter.size());
    return is_space(*untold);
}

// Parses a trial text that certainly belongs to the open part, to find out which part of the message such text extends,
// and how.
static bool find_target(uma_chat_parser & handle) {
    const std::string trial = handle.open.is_string() ? "a' True \\\" \\\\ \\/ \\n b" : "a \"b' True\n\\c";
    free_text scan = handle.open;
    if (scan.take(trial) != trial || !scan.is_open()) return false;
    handle.n_parsed += handle.text.size();
    common_chat_msg tried = parse(*handle.form, handle.text + trial).message;
    const common_chat_msg & told = handle.message;
    if (tried.tool_calls.size() != told.tool_calls.size()) return false;
    handle.open_text = nullptr;
    handle.is_open_argument = handle.is_open_escaped = false;
    handle.untold.clear();
    for (size_t i = 0; i < told.tool_calls.size(); i++) {
        const auto &before = told.tool_calls[i], &after = tried.tool_calls[i];
        if (before.name != after.name) return false;
        if (before.arguments == after.arguments) continue;
        if (i + 1 < told.tool_calls.size()) return false;
        handle.is_open_argument = true;
        handle.is_open_escaped = !is_continued(before.arguments, after.arguments, trial, &handle.untold);
        if (handle.is_open_escaped && !is_continued(before.arguments, after.arguments, escaped(trial), &handle.untold))
            return false;
    }
    for (const auto text : { &common_chat_msg::content, &common_chat_msg::reasoning_content }) {
        if (told.*text == tried.*text) continue;
        if (handle.open_text || handle.is_open_argument
            || !is_continued(told.*text, tried.*text, trial, &handle.untold)) return false;
        handle.open_text = text;
    }
    return true; // also if no part of the message grows: the parser then leaves this text out
}

// Called after a parse. If the answer ends in an open part, later text is scanned instead of parsed.
static open_end open_after(uma_chat_parser & handle) {
    handle.open = free_text();
    const std::string input = handle.form->generation_prompt + handle.text;
    handle.n_parsed += input.size();
    const open_end end = find_open_end(handle.form->arena, input, handle.tries);
    if (!end.is_one()) return end;
    const auto & parser = handle.form->arena.get(end.last);
    if (std::holds_alternative<common_peg_until_parser>(parser)) handle.open = free_text(&handle.tries.at(end.last));
    else if (const auto * string = std::get_if<common_peg_string_parser>(&parser); string && string->delimiter == '"')
        handle.open = free_text(nullptr);
    if (handle.open.is_open() && !find_target(handle)) handle.open = free_text();
    return end;
}

// Scans text after an open end -> the difference. Text that the scan does not take is left for a parse.
static json pass(uma_chat_parser & handle, const char * text, size_t size) {
    handle.untold += handle.is_open_escaped ? escaped(handle.open.take({ text, size }))
        : handle.open.take({ text, size });
    json list = json::array();
    if (!handle.open_text && !handle.is_open_argument) handle.untold.clear();
    if (handle.untold.empty()) return list;
    // the parser leaves out reasoning that is only white space, and white space after a call's JSON
    auto & whole = handle.open_text ? handle.message.*handle.open_text : handle.message.tool_calls.back().arguments;
    size_t n_told = handle.untold.size();
    if (handle.open_text == &common_chat_msg::reasoning_content && whole.empty() && is_space(handle.untold)) n_told = 0;
    if (handle.is_open_argument && !handle.is_open_escaped) n_told = handle.untold.find_last_not_of(" \t\r\n\v\f") + 1;
    if (!n_told) return list;
    const std::string told = handle.untold.substr(0, n_told);
    handle.untold.erase(0, n_told);
    whole += told;
    json entry = json::object();
    if (handle.is_open_argument) {
        entry["index"] = handle.message.tool_calls.size() - 1;
        entry["name"] = entry["id"] = "";
        entry["arguments"] = told;
    } else {
        entry[handle.open_text == &common_chat_msg::content ? "content" : "reasoning"] = told;
    }
    list.push_back(entry);
    return list;
}

// --- the interface

API int uma_chat_interface() { return INTERFACE; }

API void uma_chat_free(char * text) { free(text); }

// {chat_template, tool_use_template, bos, eos, add_bos, add_eos, max_depth} -> {capabilities, log}; *out is null on
// failure
API char * uma_chat_templates_new(const char * request, uma_chat_templates ** out) {
    *out = nullptr;
    return guarded([&] {
        const json given = parse_request(request);
        auto handle = std::make_unique<uma_chat_templates>();
        handle->model.chat_template = given.at("chat_template").get<std::string>();
        handle->model.tool_use_template = given.value("tool_use_template", "");
        handle->model.bos = given.value("bos", "");
        handle->model.eos = given.value("eos", "");
        handle->model.add_bos = given.value("add_bos", false);
        handle->model.add_eos = given.value("add_eos", false);
        handle->max_depth = given.value("max_depth", MAX_JSON_DEPTH);
        handle->max_seconds = given.value("max_seconds", MAX_SECONDS);
        handle->templates = about("template", [&] { return common_chat_templates_init(&handle->model, ""); });
        const json facts = template_facts(*handle);
        *out = handle.release();
        return facts;
    });
}

API void uma_chat_templates_delete(uma_chat_templates * handle) { delete handle; }

// {messages, tools?, tool_choice?, parallel_tool_calls?, json_schema?, add_generation_prompt?, continue_final_message?,
//  reasoning_format?, enable_thinking?, chat_template_kwargs?, write_grammar?} -> common_chat_params, with has_grammar
API char * uma_chat_apply(const uma_chat_templates * handle, const char * request) {
    return guarded([&] {
        const json given = parse_request(request, handle->max_depth);
        const auto inputs = about("request", [&] { return read_inputs(*handle, given); });
        about("schema", [&] { check_schemas(inputs); return 0; });
        chat_log.clear();
        writes_grammars = given.value("write_grammar", false);
        return in_time(handle->max_seconds + double(strlen(request)) * SECONDS_PER_BYTE, [&] {
            return about("template",
                [&] { return applied_json(common_chat_templates_apply(handle->templates.get(), inputs)); });
        });
    });
}

static std::shared_ptr<const answer_form> read_form(const std::string & request) {
    const json given = json::parse(request);
    auto form = std::make_shared<answer_form>();
    const int format = given.at("format").get<int>();
    if (format < 0 || format >= COMMON_CHAT_FORMAT_COUNT) throw problem("request", "no such format");
    form->format = static_cast<common_chat_format>(format);
    form->generation_prompt = given.value("generation_prompt", "");
    const std::string parser = given.value("parser", "");
    if (parser.empty()) form->arena =
        build_chat_peg_parser([](common_chat_peg_builder & p) { return p.content(p.rest()) + p.end(); });
    else form->arena.load(parser);
    if (given.value("is_continuation", false)) form->begun = parse(*form, "").message;
    return form;
}

// Reading a form takes 1.5 ms, for two small tools. A client's answers have the same form as long as its tools are the
// same, so the last forms are kept.
static std::shared_ptr<const answer_form> form_of(const std::string & request) {
    static std::mutex lock;
    using forms = std::deque<std::pair<std::string, std::shared_ptr<const answer_form>>>;
    static forms & kept = *new forms; // the last used comes first; never freed: threads may still run at exit
    {
        const std::lock_guard<std::mutex> guard(lock);
        const auto found =
            std::find_if(kept.begin(), kept.end(), [&](const auto & one) { return one.first == request; });
        if (found != kept.end()) {
            std::rotate(kept.begin(), found, found + 1);
            return kept.front().second;
        }
    }
    const auto form = read_form(request);
    if (request.size() > MAX_KEPT_BYTES) return form;
    const std::lock_guard<std::mutex> guard(lock);
    kept.emplace_front(request, form);
    if (kept.size() > N_KEPT_FORMS) kept.pop_back();
    return form;
}

// {format, parser, generation_prompt, is_continuation} -> true. `parser` comes from uma_chat_apply. It is trusted: a
// cyclic one would end the process.
API char * uma_chat_parser_new(const char * request, uma_chat_parser ** out) {
    *out = nullptr;
    return guarded([&] {
        auto handle = std::make_unique<uma_chat_parser>();
        handle->form = form_of(request);
        handle->message = handle->form->begun;
        *out = handle.release();
        return json(true);
    });
}

API void uma_chat_parser_delete(uma_chat_parser * handle) { delete handle; }

static bool may_parse(const uma_chat_parser & handle) {
    return handle.n_parsed + 2 * handle.text.size() <= PARSED_AT_LEAST + PARSED_PER_BYTE * handle.text.size();
}

enum pass_part { PASS_NONE, PASS_CONTENT, PASS_REASONING, PASS_ARGUMENTS };

// Adds text that continues, byte for byte, an open part of the message -> that part. PASS_NONE: nothing was added, and
// the caller has to use uma_chat_parser_feed. Nearly every token of an answer passes here, without JSON.
API int uma_chat_parser_pass(uma_chat_parser * handle, const char * text, size_t size) noexcept {
    try {
        if (!handle->open.is_open() || !handle->untold.empty() || (!handle->open_text && !handle->is_open_argument))
            return PASS_NONE;
        const std::string_view added(text, size);
        free_text open = handle->open;
        if (open.take(added) != added || !open.is_open()) return PASS_NONE;
        if (handle->is_open_argument) {
            // text that needs an escape is longer in the arguments; white space after a call's JSON is not given out
            // before more follows
            if (handle->is_open_escaped ? escaped(std::string(added)) != added : size == 0
                || is_space(std::string(added.substr(size - 1)))) return PASS_NONE;
        } else if (handle->open_text == &common_chat_msg::reasoning_content
            && handle->message.reasoning_content.empty()) {
            return PASS_NONE;
        }
        count_depth(*handle, text, size);
        handle->text.append(text, size);
        handle->open = std::move(open);
        auto & whole = handle->open_text ? handle->message.*handle->open_text
            : handle->message.tool_calls.back().arguments;
        whole.append(text, size);
        return handle->is_open_argument ? PASS_ARGUMENTS : handle->open_text == &common_chat_msg::content ? PASS_CONTENT
            : PASS_REASONING;
    } catch (...) {
        return PASS_NONE; // the answer is nested too deep: feed reports that
    }
}

enum feed_how { FEED_STREAM, FEED_FINAL, FEED_PARSE };

// Adds text to the answer -> {differences, is_read, is_whole, is_dead, n_begun, n_parsed}.
// differences: what was not given out before. is_read: all of the text has the template's form; is_whole: and the text
// is whole. is_dead: no text that follows can give it that form. n_begun: with `how` 2, how many bytes at the end are
// half a delimiter. n_parsed: bytes parsed so far.
// how: 0 parses only when it must, at a cost in proportion to the answer; 1 is for the answer's end; 2 always parses.
API char * uma_chat_parser_feed(uma_chat_parser * handle, const char * text, size_t size, int how) {
    return guarded([&] {
        handle->text.append(text, size);
        count_depth(*handle, text, size);
        return about("answer", [&] {
            json answer = json::object();
            json list = json::array();
            bool is_read = false, is_whole = false, is_dead = false;
            size_t n_begun = 0;
            if (how == FEED_STREAM && handle->open.is_open()) {
                list = pass(*handle, text, size);
                is_read = handle->open.is_open();
            }
            if (!is_read && (how != FEED_STREAM || may_parse(*handle))) {
                handle->open = free_text();
                handle->n_parsed += handle->text.size();
                try {
                    parsed found = how == FEED_FINAL ? parse_whole(*handle) : parse(*handle->form, handle->text);
                    for (const auto & entry : differences(*handle, std::move(found.message))) list.push_back(entry);
                    is_read = true;
                    is_whole = found.is_whole;
                } catch (const problem & error) {
                    if (how != FEED_STREAM) throw;
                }
                if (how == FEED_STREAM) is_dead = open_after(*handle).is_dead();
                if (how == FEED_PARSE)
                    n_begun = find_open_end(handle->form->arena, handle->form->generation_prompt + handle->text,
                        handle->tries).n_begun;
            }
            answer["differences"] = list;
            answer["is_read"] = is_read;
            answer["is_whole"] = is_whole;
            answer["is_dead"] = is_dead;
            answer["n_begun"] = n_begun;
            answer["n_parsed"] = handle->n_parsed;
            return answer;
        });
    });
}

// Takes back all but the first `size` bytes, which have been parsed without failure.
API void uma_chat_parser_rewind(uma_chat_parser * handle, size_t size) {
    if (size < handle->text.size()) handle->text.resize(size);
    handle->open = free_text();
}

// -> true. Fails, with the kind `schema`, if llama.cpp cannot read the schema of a tool or an answer.
API char * uma_chat_check_schema(const char * schema) {
    return guarded([&] {
        const json given = parse_request(schema);
        about("schema", [&] { common_chat_schema_from_json(given); return 0; });
        return json(true);
    });
}
