// The parts of a model that llama.cpp's chat code asks for: its templates and the texts of BOS and EOS. Nothing else of
// a model is known here.
#pragma once

#include <string>

struct llama_model {
    std::string chat_template, tool_use_template, bos, eos;
    bool add_bos = false, add_eos = false;
};

// Messages that llama.cpp's code logged on this thread since the call began: warnings and errors only.
extern thread_local std::string chat_log;
