/* Reads a frame of asks as link_wire's parsers do, under the same caps. What is anything but good
   is left to them: they say what is wrong with it. Copies nothing before its length is known. */

#ifndef BATON_ASKS_IN_H
#define BATON_ASKS_IN_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include "link.h"

typedef struct {
    const unsigned char *at, *end;
} Bytes;

/* Big-endian, of a length that the caller has checked. */
static uint64_t take(Bytes *bytes, int size_bytes) {
    uint64_t number = 0;
    for (int i = 0; i < size_bytes; i++)
        number = number << 8 | *bytes->at++;
    return number;
}

static int has(const Bytes *bytes, uint64_t size_bytes) {
    return (uint64_t)(bytes->end - bytes->at) >= size_bytes;
}

/* Adds (page, generation) to a list. */
static int add_page(PyObject *pages, uint64_t page, PyObject *generation) {
    PyObject *named = Py_BuildValue("(kO)", (unsigned long)page, generation);
    int good = named != NULL && PyList_Append(pages, named) == 0;
    Py_XDECREF(named);
    return good;
}

/* (first, generations), and its pages by name; or NULL, with an exception set only where there is
   no memory. */
static PyObject *take_run(Bytes *bytes, uint64_t *left, PyObject *named) {
    if (!has(bytes, RUN_BYTES))
        return NULL;
    uint64_t first = take(bytes, 4), pages = take(bytes, 4);
    if (pages == 0 || pages > *left || !has(bytes, 8 * pages))
        return NULL;
    *left -= pages;
    PyObject *generations = PyTuple_New((Py_ssize_t)pages);
    for (uint64_t i = 0; generations != NULL && i < pages; i++) {
        PyObject *generation = PyLong_FromUnsignedLongLong(take(bytes, 8));
        if (generation != NULL)
            PyTuple_SET_ITEM(generations, (Py_ssize_t)i, generation);
        if (generation == NULL || !add_page(named, first + i, generation))
            Py_CLEAR(generations);
    }
    return generations == NULL ? NULL : Py_BuildValue("(kN)", (unsigned long)first, generations);
}

static PyObject *take_runs(Bytes *bytes, uint64_t count, PyObject *named) {
    PyObject *runs = PyTuple_New((Py_ssize_t)count);
    uint64_t left = MOST_PAGES;
    for (uint64_t i = 0; runs != NULL && i < count; i++) {
        PyObject *run = take_run(bytes, &left, named);
        if (run == NULL)
            Py_CLEAR(runs);
        else
            PyTuple_SET_ITEM(runs, (Py_ssize_t)i, run);
    }
    return runs;
}

/* (tag, page_bytes, timeout_ms, ticket, runs, pages), as take_run. */
static PyObject *take_ask(Bytes *bytes) {
    if (!has(bytes, ASK_BYTES))
        return NULL;
    bytes->at += NUMBER_BYTES;
    uint64_t tag = take(bytes, 8), page_bytes = take(bytes, 8);
    uint64_t timeout_ms = take(bytes, 4), ticket_bytes = take(bytes, 2), count = take(bytes, 4);
    if (ticket_bytes > MOST_TICKET_BYTES || !has(bytes, ticket_bytes) || count == 0 ||
        count > MOST_PAGES || timeout_ms == 0 || timeout_ms > MOST_TIMEOUT_MS ||
        tag < TAG_STEP || tag % TAG_STEP != 0)
        return NULL;
    PyObject *ticket =
        PyUnicode_DecodeUTF8((const char *)bytes->at, (Py_ssize_t)ticket_bytes, NULL);
    if (ticket == NULL)
        return NULL;
    bytes->at += ticket_bytes;
    PyObject *named = PyList_New(0);
    PyObject *runs = named == NULL ? NULL : take_runs(bytes, count, named);
    if (runs == NULL) {
        Py_DECREF(ticket);
        Py_XDECREF(named);
        return NULL;
    }
    return Py_BuildValue("(KKkNNN)", (unsigned long long)tag, (unsigned long long)page_bytes,
                         (unsigned long)timeout_ms, ticket, runs, named);
}

/* asks_in(buffer, size_bytes): a list of asks; None: this is no good frame of asks. */
static PyObject *asks_in(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer view;
    Py_ssize_t size_bytes;
    if (!PyArg_ParseTuple(args, "y*n", &view, &size_bytes))
        return NULL;
    PyObject *asks = NULL;
    Bytes bytes = {view.buf, (const unsigned char *)view.buf + view.len};
    if (size_bytes >= HEADER_BYTES && size_bytes <= view.len && take(&bytes, 1) == ASK_KIND) {
        uint64_t length = take(&bytes, 4);
        if (length > 0 && length <= (uint64_t)(size_bytes - HEADER_BYTES)) {
            bytes.end = bytes.at + length;
            asks = PyList_New(0);
        }
    }
    while (asks != NULL && bytes.at != bytes.end) {
        PyObject *ask = PyList_GET_SIZE(asks) < MOST_ASKS ? take_ask(&bytes) : NULL;
        if (ask == NULL || PyList_Append(asks, ask) < 0)
            Py_CLEAR(asks);
        Py_XDECREF(ask);
    }
    PyBuffer_Release(&view);
    if (asks != NULL)
        return asks;
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_UnicodeDecodeError))
        return NULL;
    PyErr_Clear();
    Py_RETURN_NONE;
}

#endif
