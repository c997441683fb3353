"""A load generator for servers that speak the OpenAI protocol.

One run is a list of workloads, repeated, against one or two servers. :mod:`bench.serve.workloads` says what is asked,
:mod:`bench.serve.load` when, :mod:`bench.serve.client` keeps the received bytes with their arrival times, and after the
run :mod:`bench.serve.answer` reads them, :mod:`bench.serve.metrics` sums them up and :mod:`bench.serve.report` prints.
"""
