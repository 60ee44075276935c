// Included before jinja/runtime.cpp, whose debug messages mark the steps of a template. Each becomes a look at the
// time: a template is a program that came with a model file, and a thread that computes one cannot be ended from
// outside.
#pragma once

#include "jinja/runtime.h"

void chat_step();
#undef JJ_DEBUG
#define JJ_DEBUG(...) chat_step()
