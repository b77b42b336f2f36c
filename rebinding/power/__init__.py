"""How often each verdict would come out, if the paper were right as printed and if its rival were: made-up evidence."""
